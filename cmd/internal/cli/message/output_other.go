// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package message

import "os"

func replaced(f *os.File) bool {
	_, err := f.Stat()
	return err != nil
}
