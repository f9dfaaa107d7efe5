// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Names in a backup path and in a backup.
const (
	manifestName   = "manifest.json"
	packName       = "pages.pack"
	sealedPackName = packName + ".age"
	// partialMarkerName is the object in the folder that marks an incomplete backup. The name of the folder consists of a
	// prefix and the name of the backup. The prefix is partialPrefix while the backup is being made, and removedPrefix
	// while it is being removed.
	partialMarkerName = "begun"
	lockName          = ".lock"
	partialPrefix     = ".partial-"
	removedPrefix     = ".removed-"

	nameTime = "20060102T150405Z"
)

// nameForm matches the names that setName returns. The last number distinguishes backups of the same second.
const nameForm = `^(\d{8}T\d{6}Z)-lsn(\d{6,20})-ps(\d{4,7})(?:-(\d{1,4}))?$`

func setName(created time.Time, lsn uint64, pageSize, again int) string {
	name := fmt.Sprintf("%s-lsn%06d-ps%d", created.UTC().Format(nameTime), lsn, pageSize)
	if again > 0 {
		name = fmt.Sprintf("%s-%d", name, again)
	}
	return name
}

type nameParts struct {
	created  time.Time
	lsn      uint64
	pageSize int
}

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

func isLeftover(name string) bool {
	return strings.HasPrefix(name, partialPrefix) || strings.HasPrefix(name, removedPrefix)
}

func setOf(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, partialPrefix), removedPrefix)
}
