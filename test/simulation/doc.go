//go:build unix

// Package simulation runs whole pairs in simulated time.
package simulation
