// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
)

// TLSFiles names PEM files. The client reloads changed files when it makes a connection, at most once a second. Open
// connections are not affected. Without a file name, TLSFiles has no effect.
type TLSFiles struct {
	// CA is the file with the CA certificates that verify the nodes; if empty, the CAs of the system are used.
	CA string
	// Cert and Key are the files with the client certificate and its private key, if any.
	Cert, Key string
	// MinVersion is the minimum TLS version, such as tls.VersionTLS12; 0 means TLS 1.3.
	MinVersion uint16
	// Changed, if not nil, is called with nil when new file contents are used, and with an error when they cannot be
	// used. It must not block.
	Changed func(error)
}

func (o *Options) readFiles() error {
	f := tlsfiles.Files{CA: o.TLSFiles.CA, Cert: o.TLSFiles.Cert, Key: o.TLSFiles.Key}
	if f.Empty() {
		return nil
	}
	if o.TLS != nil {
		return fmt.Errorf("%w: TLS and TLSFiles are both set; set one of them", ErrInvalid)
	}
	source, err := tlsfiles.Open(tlsfiles.Options{
		Files: f, MinVersion: o.TLSFiles.MinVersion, OnChange: o.TLSFiles.Changed,
	})
	if err != nil {
		return fmt.Errorf("%w: TLSFiles: %w", ErrInvalid, err)
	}
	o.secure = source.Credentials(nil)
	return nil
}
