// SPDX-License-Identifier: Apache-2.0

package cert

// Files are those of a pair on one machine, in PEM.
type Files struct {
	// CA has the authority.
	CA string
	// NodeCert and NodeKey are the nodes', ClientCert and ClientKey those of a client of theirs.
	NodeCert, NodeKey, ClientCert, ClientKey string
}

// Make makes an authority, a certificate for nodes on these hosts and one for a client of that name, which are good for
// a day, in a directory that is there.
func Make(dir string, hosts []string, client string) (Files, error) {
	const name = "node"
	ca, _, err := newAuthority(dir, 1)
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
		CA: certFile(dir, authorityName), NodeCert: certFile(dir, name), NodeKey: keyFile(dir, name),
		ClientCert: certFile(dir, client), ClientKey: keyFile(dir, client),
	}, nil
}
