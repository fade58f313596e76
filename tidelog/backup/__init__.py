"""Backups of the sequencer's Postgres in Tidelog's own bucket: base backups and WAL archiving, by Barman's
commands.
"""
