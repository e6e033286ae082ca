"""What a release consists of, written and read: packs (`pack`, `split`, `left_out`), manifests (`manifest`,
`manifest_model`), parts of a release (`parts`); `reader` opens releases and `verify` checks them, `picture` draws them.

Imports `options` and `base`. What reads needs the standard library, and pyelftools and zstandard where it looks into
images: `kiln inspect` runs on machines that have no more.
"""
