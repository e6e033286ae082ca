"""What a release is made of, and how it came about: the licences of its parts (`notices`), the bill of materials
(`bill`), the provenance (`provenance`), what compiles took (`timeline`, `costs`, `records`). May import `trust` and
what is below it, and of kiln_recipe anything."""
