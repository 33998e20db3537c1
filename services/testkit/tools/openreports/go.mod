// The CRDs of openreports.io, which tests install in a real API server.
module pillion.dev/testkit/openreports

go 1.26.0

require github.com/openreports/reports-api v0.2.1
