"""Tests of the entry point."""

import subprocess
import sys


def test_asyncio_is_loaded_without_openssl_and_ssl_can_be_loaded_later() -> None:
    program = (
        "import sys\n"
        "from ft_run.launcher.main import import_asyncio\n"
        "import_asyncio()\n"
        "import asyncio\n"
        "assert '_ssl' not in sys.modules\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "import ssl\n"
        "assert ssl.SSLContext\n"
        "import_asyncio()\n"
        "assert sys.modules['ssl'] is ssl\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
