"""Object stores: S3, a local folder, memory."""
