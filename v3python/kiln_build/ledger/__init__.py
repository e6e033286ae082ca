"""The ledger of images: what each was when it was recorded (`file`), what it is now (`ledger`), why it may be worse
(`reasons`), and the page that says so (`report`). `planned` and `explained` tell of a plan what it knows.

Imports `front` and all below it.
"""
