"""Fakes and fault injection, shipped for users' tests too. Nothing else imports this package."""
