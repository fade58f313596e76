"""The bytes: record batches, segment format, Arrow columns, object stores."""
