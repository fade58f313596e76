"""Configs of topics, brokers and groups, as administrators read and change them."""
