#!/usr/bin/env bash
# Adds a file of certificates to those that the image trusts. usage: install-certificates.sh <file.pem>
set -euo pipefail

if [[ -d /etc/pki/ca-trust/source/anchors ]]; then
    cp -- "$1" /etc/pki/ca-trust/source/anchors/kiln-site.pem
    update-ca-trust extract
elif [[ -d /usr/local/share/ca-certificates ]]; then
    cp -- "$1" /usr/local/share/ca-certificates/kiln-site.crt
    update-ca-certificates
else
    echo "kiln: this image has no store of certificates; use a base with ca-certificates" >&2
    exit 7
fi
