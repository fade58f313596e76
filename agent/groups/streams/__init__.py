"""Groups of the streams protocol (KIP-1071): the coordinator assigns a topology's tasks to its members."""
