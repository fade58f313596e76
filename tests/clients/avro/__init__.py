"""A program that writes and reads Avro with the serializers of confluent-kafka, in packages of its own."""
