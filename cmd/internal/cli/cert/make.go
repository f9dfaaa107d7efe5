// SPDX-License-Identifier: Apache-2.0

package cert

// Files are the PEM files of a pair on one machine.
type Files struct {
	// CA is the file of the CA certificate.
	CA string
	// NodeCert and NodeKey are for both nodes, ClientCert and ClientKey for a client.
	NodeCert, NodeKey, ClientCert, ClientKey string
}

// Make creates a CA, a certificate for nodes on the given hosts and one for a client with the given name. They are
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
