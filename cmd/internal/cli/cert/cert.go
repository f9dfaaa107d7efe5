// SPDX-License-Identifier: Apache-2.0

// Package cert implements the commands that create certificates for development and tests, and that show certificates.
package cert

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const (
	defaultDir = "certs"
	// Validity of certificates and of the CA, in days.
	defaultDays      = 365
	defaultCADays    = 5 * 365
	maxDays          = 100 * 365
	caName           = "ca"
	daysUsage        = "validity in days; a certificate does not outlive its CA"
	hostsNote        = " (DNS names, IP addresses, URIs; comma-separated)"
	thisMachineNames = "localhost,127.0.0.1,::1"
)

var errExists = errors.New("file exists and is not overwritten")

// Command returns the `lockstep cert` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cert", GroupID: "operate",
		Short: "Create and show certificates for TLS",
		Long: `Create a CA and certificates for development, tests and small networks, and show certificates. Nodes and
clients work with certificates of other CAs as well.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(initCommand(env), issueCommand(env), showCommand(env))
	return cmd
}

type made struct {
	Name string `json:"name"`
	// For is "authority", "peer" or "client".
	For  string `json:"for"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
	// Names are the subject alternative names.
	Names []string  `json:"names"`
	Ends  time.Time `json:"ends"`
}

type result struct {
	Directory    string `json:"directory"`
	Certificates []made `json:"certificates"`
}

func initCommand(env *cli.Env) *cobra.Command {
	var nodeA, nodeB, witness []string
	var days, caDays int
	cmd := &cobra.Command{
		Use: "init [DIR]", Short: "Create a CA and certificates for a pair",
		Long: `Create a CA (ca.pem, ca-key.pem) and certificates for two nodes, a witness and a client. The default of DIR
is "` + defaultDir + `". The command fails if one of the files exists.

Copy ca.pem, and the certificate and key of each machine, to that machine. Keep ca-key.pem secret: with this key,
anyone can create certificates of the CA.`,
		Example: `  lockstep cert init
  lockstep cert init certs --node-a node-a.example.net,10.0.0.1 --node-b node-b.example.net,10.0.0.2 --witness node-c.example.net
  lockstep serve --config node.yaml --tls-ca certs/ca.pem --tls-cert certs/node-a.pem --tls-key certs/node-a-key.pem`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := defaultDir
			if len(args) > 0 {
				dir = args[0]
			}
			if err := checkDays("--ca-days", caDays); err != nil {
				return err
			}
			var wanted []request
			for _, w := range []struct {
				name  string
				hosts []string
				peer  bool
			}{{"node-a", nodeA, true}, {"node-b", nodeB, true}, {"witness", witness, true}, {"client", nil, false}} {
				r, err := newRequest(w.name, w.hosts, w.peer, days)
				if err != nil {
					return err
				}
				wanted = append(wanted, r)
			}
			if err := mayWrite(dir, append([]string{caName}, namesOf(wanted)...)); err != nil {
				return err
			}
			ca, first, err := newCA(dir, caDays)
			if err != nil {
				return err
			}
			return issue(env, ca, dir, wanted, first)
		},
	}
	f := cmd.Flags()
	local := strings.Split(thisMachineNames, ",")
	f.StringSliceVar(&nodeA, "node-a", append([]string{"node-a"}, local...), "names of the first node"+hostsNote)
	f.StringSliceVar(&nodeB, "node-b", append([]string{"node-b"}, local...), "names of the second node"+hostsNote)
	f.StringSliceVar(&witness, "witness", append([]string{"witness"}, local...), "names of the witness"+hostsNote)
	f.IntVar(&days, "days", defaultDays, daysUsage)
	f.IntVar(&caDays, "ca-days", defaultCADays, "validity of the CA in days")
	return cmd
}

func issueCommand(env *cli.Env) *cobra.Command {
	var dir, name string
	var hosts []string
	var client, peer bool
	var days int
	cmd := &cobra.Command{
		Use: "issue --name NAME (--client | --peer)", Short: "Create a certificate from an existing CA",
		Long: `Create a certificate with the CA in --dir (ca.pem, ca-key.pem), as NAME.pem and NAME-key.pem in the same
directory. The command fails if one of these files exists.

The principal of a client certificate is its first URI; without a URI, its first DNS name; without both, NAME. A
certificate for a node or a witness (--peer) requires --hosts, the names or addresses to which other processes
connect.`,
		Example: `  lockstep cert issue --name orders-app --client
  lockstep cert issue --name orders-app --client --hosts spiffe://example.net/orders --days 30
  lockstep cert issue --name node-c --peer --hosts node-c.example.net,10.0.0.3 --dir certs`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if peer && len(hosts) == 0 {
				return cli.Usage("--peer requires --hosts: the names to which other processes connect")
			}
			r, err := newRequest(name, hosts, peer, days)
			if err != nil {
				return err
			}
			ca, err := openCA(dir)
			if err != nil {
				return err
			}
			if err := mayWrite(dir, []string{name}); err != nil {
				return err
			}
			return issue(env, ca, dir, []request{r})
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "dir", defaultDir, "directory of the CA and of the new files")
	f.StringVar(&name, "name", "", "name of the certificate and its files")
	f.StringSliceVar(&hosts, "hosts", nil, "names in the certificate"+hostsNote)
	f.BoolVar(&client, "client", false, "client certificate")
	f.BoolVar(&peer, "peer", false, "certificate for a node or a witness")
	f.IntVar(&days, "days", defaultDays, daysUsage)
	_ = cmd.MarkFlagRequired("name")
	cmd.MarkFlagsMutuallyExclusive("client", "peer")
	cmd.MarkFlagsOneRequired("client", "peer")
	return cmd
}

// issue creates certificates. It prints the certificates in first, and then the created ones.
func issue(env *cli.Env, ca *caFiles, dir string, wanted []request, first ...made) error {
	r := result{Directory: dir, Certificates: first}
	for i := range wanted {
		m, err := ca.issue(dir, &wanted[i])
		if err != nil {
			return err
		}
		r.Certificates = append(r.Certificates, m)
	}
	if err := env.Print.Object(r); err != nil {
		return err
	}
	rows := make([][]any, 0, len(r.Certificates))
	for _, m := range r.Certificates {
		use := m.For
		if m.Name == caName {
			use = "CA"
		}
		rows = append(rows, []any{m.Name, use, strings.Join(m.Names, " "), m.Ends.Format(time.DateOnly), m.Cert, m.Key})
	}
	return env.Print.Table([]string{"Name", "For", "Names", "Expires", "Certificate", "Key"}, rows)
}

func newRequest(name string, hosts []string, peer bool, days int) (request, error) {
	if name == "" || name == caName || strings.HasSuffix(name, "-key") || name != filepath.Base(name) ||
		strings.HasPrefix(name, ".") {
		return request{}, cli.Usage("--name %q is not a valid name of a certificate and its files", name)
	}
	if err := checkDays("--days", days); err != nil {
		return request{}, err
	}
	r := request{name: name, peer: peer, days: days}
	for _, h := range hosts {
		if err := r.add(strings.TrimSpace(h)); err != nil {
			return request{}, err
		}
	}
	return r, nil
}

func checkDays(flag string, days int) error {
	if days < 1 || days > maxDays {
		return cli.Usage("%s %d must be between 1 and %d", flag, days, maxDays)
	}
	return nil
}

func namesOf(wanted []request) []string {
	names := make([]string, 0, len(wanted))
	for i := range wanted {
		names = append(names, wanted[i].name)
	}
	return slices.Clip(names)
}

func certFile(dir, name string) string { return filepath.Join(dir, name+".pem") }
func keyFile(dir, name string) string  { return filepath.Join(dir, name+"-key.pem") }

func exists(file string) error { return fmt.Errorf("%s: %w", file, errExists) }

// Files are the PEM files of a pair on one machine.
type Files struct {
	// CA is the file of the CA certificate.
	CA string
	// NodeCert and NodeKey are for both nodes, ClientCert and ClientKey for a client.
	NodeCert, NodeKey, ClientCert, ClientKey string
}

// Make creates a CA, a certificate for nodes on the given hosts, and a client certificate with the given name. They are
// valid for a day. The directory must exist.
func Make(dir string, hosts []string, client string) (Files, error) {
	const name = "node"
	ca, _, err := newCA(dir, 1)
	if err != nil {
		return Files{}, err
	}
	for _, one := range []struct {
		name  string
		hosts []string
		peer  bool
	}{{name, hosts, true}, {client, nil, false}} {
		r, err := newRequest(one.name, one.hosts, one.peer, 1)
		if err != nil {
			return Files{}, err
		}
		if _, err := ca.issue(dir, &r); err != nil {
			return Files{}, err
		}
	}
	return Files{
		CA: certFile(dir, caName), NodeCert: certFile(dir, name), NodeKey: keyFile(dir, name),
		ClientCert: certFile(dir, client), ClientKey: keyFile(dir, client),
	}, nil
}
