"""The load generator: exact load and exact stamps, cheap enough never to be what is measured."""
