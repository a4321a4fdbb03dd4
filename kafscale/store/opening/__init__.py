"""From the settings to a store that is ready to use. Entered by `opening.open_store`; `views` is what it gives."""
