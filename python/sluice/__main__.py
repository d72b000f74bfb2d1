# SPDX-License-Identifier: MIT
from ._program import main

main()
