module oxpd

go 1.23.0

require (
	github.com/coreos/go-systemd/v22 v22.7.0
	github.com/gaissmai/bart v0.22.0
	github.com/google/gopacket v1.1.19
	github.com/jsimonetti/rtnetlink/v2 v2.0.2
	github.com/mdlayher/netlink v1.7.2
	github.com/spf13/cobra v1.10.2
	github.com/stretchr/testify v1.11.1
	github.com/u-root/u-root v0.14.0
	go.yaml.in/yaml/v3 v3.0.4
	golang.org/x/net v0.23.0
	golang.org/x/sys v0.35.0
)

require (
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/google/go-cmp v0.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/josharian/native v1.1.0 // indirect
	github.com/mdlayher/socket v0.5.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/sync v0.6.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
