# One image for all services and commands; the command line says which: `meguri dedup`, `meguri topics create`, ...

ARG PYTHON_IMAGE=python:3.13.9-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# Compiled code is kept for this kind of processor, so that it fits any machine of it and not just the one that built.
ARG KERNEL_CPU=x86-64-v3
ENV NUMBA_CPU_NAME=${KERNEL_CPU} NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=/opt/meguri/kernels PIP_NO_CACHE_DIR=1
COPY requirements requirements
RUN python -m venv /opt/meguri \
 && /opt/meguri/bin/pip install --quiet --require-hashes --requirement requirements/fleet.lock \
 && find /opt/meguri/lib -type d \( -path '*/numba/tests' -o -path '*/pyarrow/tests' -o -path '*/pyarrow/include' \
      -o -path '*/numpy/*/tests' \) -prune -exec rm -rf {} +
COPY LICENSE NOTICE README.md pyproject.toml ./
COPY libs libs
COPY services services
COPY meguri meguri
# Whole seconds: layers keep no fractions, and compiled code counts as stale when its source has another time.
RUN /opt/meguri/bin/pip install --quiet --no-deps --no-build-isolation . \
 && find /opt/meguri/lib -path '*/site-packages/meguri*' -name '*.py' -exec touch -d @1735689600 {} +
COPY examples examples
RUN /opt/meguri/bin/meguri run examples/sqlite-docs.jsonl.zst --data /tmp/warm --json >/dev/null \
 && /opt/meguri/bin/pip uninstall --quiet --yes pip \
 && rm -rf /tmp/warm

FROM ${PYTHON_IMAGE}
ARG KERNEL_CPU=x86-64-v3
ENV PATH=/opt/meguri/bin:$PATH PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=${KERNEL_CPU} NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=/opt/meguri/kernels
RUN useradd --uid 10001 --create-home meguri && install --directory --owner=meguri --group=meguri /data
COPY --from=build --chown=10001:10001 /opt/meguri /opt/meguri
USER meguri
WORKDIR /home/meguri
VOLUME /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["meguri"]
CMD ["--help"]
