// SPDX-License-Identifier: Apache-2.0

package pairstatus

// Values of --node that are roles.
const (
	Standby = "standby"
	Active  = "active"
)

// BaseRole returns the same role for an active with and without a standby.
func BaseRole(role string) string {
	if role == "active-alone" {
		return Active
	}
	return role
}
