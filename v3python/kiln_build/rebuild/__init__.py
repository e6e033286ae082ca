"""A release made again from what its manifest names, and held against it: `asked` reads out of the manifest how it was
built, `tree` gets the source and its toolchain, `again` builds, `verdict` says 'identical' or what differs first.

May import all but `cli` and `ledger`.
"""
