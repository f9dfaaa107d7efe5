// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Names in a backup path and in a save-set.
const (
	manifestName  = "manifest.json"
	packName      = "pages.pack"
	lockName      = ".lock"
	partialPrefix = ".partial-"
	removedPrefix = ".removed-"

	nameTime = "20060102T150405Z"
)

// nameForm is what setName makes; the last number tells sets of the same second apart.
const nameForm = `^(\d{8}T\d{6}Z)-lsn(\d{6,20})-ps(\d{4,7})(?:-(\d{1,4}))?$`

// setName names a save-set.
func setName(created time.Time, lsn uint64, pageSize, again int) string {
	name := fmt.Sprintf("%s-lsn%06d-ps%d", created.UTC().Format(nameTime), lsn, pageSize)
	if again > 0 {
		name = fmt.Sprintf("%s-%d", name, again)
	}
	return name
}

// nameParts are what a name says.
type nameParts struct {
	created  time.Time
	lsn      uint64
	pageSize int
}

// parseName returns false for what is no save-set's name.
func parseName(name string) (nameParts, bool) {
	m := regexp.MustCompile(nameForm).FindStringSubmatch(name)
	if m == nil {
		return nameParts{}, false
	}
	created, err1 := time.Parse(nameTime, m[1])
	lsn, err2 := strconv.ParseUint(m[2], 10, 64)
	size, err3 := strconv.Atoi(m[3])
	return nameParts{created: created, lsn: lsn, pageSize: size}, err1 == nil && err2 == nil && err3 == nil
}

// isLeftover tells what only a Run that was interrupted leaves behind.
func isLeftover(name string) bool {
	return strings.HasPrefix(name, partialPrefix) || strings.HasPrefix(name, removedPrefix)
}

func join(dir, name string) string { return filepath.Join(dir, name) }
