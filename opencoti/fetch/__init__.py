"""Getting one published file onto this machine: downloaded or copied, verified, and put in place whole.

`opencoti.fetch.get.fetch` is the entry for programs, `python -m opencoti.fetch` for people. The parts:
`settings` (environment), `source` (what to get), `addresses` and `answers` (rules for URLs and HTTP answers),
`pace` (stalls and retries), `transport` (HTTP), `download` (the state machine over these), `local_copy`,
`partial`, `lock` and `store` (files), `trial` (does the engine start here). Importing the package loads none
of them. Which file suits this host is not decided here.
"""
