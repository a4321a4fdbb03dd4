"""The broker's own HTTP: the server loop (`loop.HttpServer`) and the admin endpoint on it (`admin.AdminServer`)."""
