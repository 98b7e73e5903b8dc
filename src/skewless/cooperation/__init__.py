"""Shares what several sources learn: `protocol` has the messages and rules, `network` simulates their delivery."""
