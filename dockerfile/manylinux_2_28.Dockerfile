# The image that a release is built in, and the small one that a release is run in. README.md beside this file.
#
# Stages:   devel    the base, the source tree at /kiln/source, checked and ready to build and test
#           release  an unpacked release and its C example; no compiler
ARG KILN_BASE_IMAGE=quay.io/pypa/manylinux_2_28_x86_64:2025.11.11-1
ARG KILN_RELEASE_BASE=docker.io/library/almalinux:8-minimal

FROM ${KILN_BASE_IMAGE} AS devel
# The address of RHEL 8's amdgpu-install package; empty: no ROCm. A build never needs it.
ARG AMDGPU_INSTALLER=
COPY . /kiln/source
RUN bash /kiln/source/input/install.sh /kiln/source "${AMDGPU_INSTALLER}"
WORKDIR /kiln/source

FROM devel AS unpacked
# The tarball, a path within the build's context.
ARG KILN_TARBALL=output/kiln.tar.gz
COPY ${KILN_TARBALL} /tmp/kiln.tar.gz
RUN bash /kiln/source/input/install-release.sh /tmp/kiln.tar.gz /opt

FROM ${KILN_RELEASE_BASE} AS release
COPY --from=unpacked /opt/kiln /opt/kiln
CMD ["/opt/kiln/bin/kiln-example"]
