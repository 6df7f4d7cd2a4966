"""What the tests of workers share."""

from workers.tensorrt import use

use()
