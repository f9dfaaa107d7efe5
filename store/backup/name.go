// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Names in a backup path and in a save-set.
const (
	manifestName = "manifest.json"
	packName     = "pages.pack"
	// sealedPackName is that of an encrypted pack.
	sealedPackName = packName + ".age"
	// begunName is in a folder with the name of a set behind partialPrefix while that is being made, behind
	// removedPrefix while it is being removed.
	begunName     = "begun"
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

// setOf is the name of the set that a leftover belongs to.
func setOf(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, partialPrefix), removedPrefix)
}
