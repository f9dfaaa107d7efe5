// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
)

// TLSFiles names files in PEM. They are looked at when a connection is made, once a second at most, and read again if
// they have changed, also by a link that was swapped: an application that runs for long goes on when its certificate or
// the authorities are replaced. Connections that are open are not touched. The zero value: no TLS.
type TLSFiles struct {
	// CA has the authorities that the nodes' certificates are checked against. Empty: those of the system.
	CA string
	// Cert and Key are shown to the nodes. Both empty: none is shown.
	Cert, Key string
	// MinVersion of TLS, such as tls.VersionTLS12; 0 is TLS 1.3.
	MinVersion uint16
	// Changed is called when a new content of the files is used (nil), and when it cannot be (why): what the files held
	// before is used then. Nil: nothing is told. It must not block.
	Changed func(error)
}

// readFiles reads the files, if there are any. The error is ErrInvalid.
func (o *Options) readFiles() error {
	f := tlsfiles.Files{CA: o.TLSFiles.CA, Cert: o.TLSFiles.Cert, Key: o.TLSFiles.Key}
	if f.Empty() {
		return nil
	}
	if o.TLS != nil {
		return fmt.Errorf("%w: TLS and TLSFiles are set; give one of them", ErrInvalid)
	}
	source, err := tlsfiles.Open(tlsfiles.Options{
		Files: f, MinVersion: o.TLSFiles.MinVersion, Told: o.TLSFiles.Changed,
	})
	if err != nil {
		return fmt.Errorf("%w: TLSFiles: %w", ErrInvalid, err)
	}
	o.secure = source.Credentials(nil)
	return nil
}
