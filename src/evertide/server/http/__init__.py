"""The app behind a socket: endpoints as values, answers, errors, media types and the OpenAPI document."""
