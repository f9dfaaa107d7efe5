//go:build !mutate

package mutate

// Off tells whether what enforces an invariant is switched off: never, in this build.
func Off(string) bool { return false }
