"""Opens the store that the settings name. Entered by `opening.open_store`, which returns `views`."""
