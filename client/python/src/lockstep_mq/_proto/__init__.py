# SPDX-License-Identifier: Apache-2.0
"""Generated from proto/lockstep/v1 by client/python/generate.sh. Not part of the public interface."""
