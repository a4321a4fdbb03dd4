"""One module per API: attrs classes and nothing else; `leaders` has what two of them share."""
