"""What the fleet's commands share: the campaign's file, clients, topics, positions, reading back."""
