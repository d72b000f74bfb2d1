/* SPDX-License-Identifier: MIT
 * bundle.h - the files of the bundled model, carried in the binary by tools/embed.
 */
#ifndef SL_IO_BUNDLE_H
#define SL_IO_BUNDLE_H

#include "base/embed.h"

extern const struct sl_embedded sl_bundle_table[]; /* ended by a row of zeros */

#endif
