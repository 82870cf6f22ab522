"""The programs that test_forkserver.py runs both ways; each prints what it can observe."""

START = """
first = dict(globals())
import sys
modules = sorted(sys.modules)
cache = sorted(sys.path_importer_cache)
import atexit, ctypes, faulthandler, gc, inspect, json, locale, os, pickle, resource, signal
import threading, traceback, types, warnings

def function(x):
    return x + 1

def files():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name).partition(":")[0]
        except OSError:
            pass
    return found

def proc(name):
    with open("/proc/self/" + name) as file:
        return file.read()

STATUS = "SigBlk SigIgn SigCgt SigPnd NoNewPrivs CapEff Groups Threads Cpus_allowed_list Umask"
parent_signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(parent_signal))
streams = [(sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)]
filters = [str(f) for f in warnings.filters]
seen = {
    "__main__": list(first),
    "__main__ values": [repr(v) for k, v in first.items() if k != "__builtins__"],
    "__builtins__": isinstance(first["__builtins__"], types.ModuleType),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "flags": str(sys.flags),
    "interpreter": [sys.executable, sys.prefix, sys._xoptions, sys.warnoptions],
    "modules": modules,
    "importers": cache,
    "finders": [len(sys.meta_path), len(sys.path_hooks)],
    "files": files(),
    "handlers": {int(s): str(signal.getsignal(s)) for s in signal.valid_signals()},
    "wakeup": signal.set_wakeup_fd(-1),
    "timer": signal.getitimer(signal.ITIMER_REAL),
    "status": [line for line in proc("status").splitlines() if line.split(":")[0] in STATUS],
    "umask": os.umask(0o22),
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if "RLIMIT" in n},
    "place": [os.getcwd(), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.nice(0)],
    "parent dies": parent_signal.value,
    "title": [proc("comm"), proc("cmdline").split("\\0"), os.readlink("/proc/self/exe")],
    "environment": sorted(os.environb) == sorted(os.environ._data),
    "variables": dict(os.environ),
    "shown variables": sorted(proc("environ").split("\\0")),
    "environment in C": ctypes.CDLL(None).getenv(b"PROBE") != 0,
    "threads": [t.name for t in threading.enumerate()],
    "main thread": threading.main_thread().native_id == os.getpid(),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.callbacks],
    "faulthandler": faulthandler.is_enabled(),
    "filters": filters,
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding()],
    "streams": [
        [s.name, s.mode, s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through,
         s.isatty(), type(s.buffer).__name__, s.fileno(), s is original]
        for s, original in streams
    ],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
              sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval()],
    "source": inspect.getsource(function),
    "pickle": pickle.loads(pickle.dumps(function)) is function,
    "atexit": atexit._ncallbacks(),
    "children's time": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
    "little time": resource.getrusage(resource.RUSAGE_SELF).ru_utime < 5,
    "frames": [(frame.filename, frame.function) for frame in inspect.stack()],
    "frozen": gc.get_freeze_count(),
}
print(json.dumps(seen, default=str))
"""

ENDS = """
import atexit, os, signal, sys, threading, time, warnings
how = sys.argv[1]
print("begins", how)

@atexit.register
def bye():
    print("atexit")

def hook(*given):
    if how == "a hook that fails":
        raise TypeError("in the hook")
    if how == "a hook that exits":
        sys.exit(5)
    import traceback
    print("hook", given[0].__name__, traceback.format_tb(given[2]), sys.exc_info())

match how.split():
    case ["exit", what]:
        sys.exit(eval(what))
    case ["thread"]:
        main = threading.main_thread()
        threading.Thread(target=lambda: (main.join(), print("the thread ends"))).start()
    case ["raise", what]:
        raise eval(what)
    case ["cause"]:
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise RuntimeError("worse") from error
    case ["_exit"]:
        os._exit(9)
    case ["signal", number]:
        os.kill(os.getpid(), int(number))
        time.sleep(60)
    case ["a", "hook", *_]:
        sys.excepthook = hook
        1 / 0
    case ["no", "hook"]:
        del sys.excepthook
        1 / 0
    case ["finalizer"]:
        class Thing:
            def __del__(self):
                print("deleted", end="")
        thing = Thing()
    case ["closed"]:
        os.close(1)
        print("this is not read")
    case ["warnings"]:
        warnings.warn("careful")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
"""

SOME_WAYS_TO_END = (
    "well",
    "exit 3",
    "raise KeyboardInterrupt",
    "raise ValueError('bad')",
    "cause",
    "a hook that fails",
)
"""Those that show what is below the program's frames."""

WAYS_TO_END = (
    "well",
    "thread",
    *(
        f"exit {what}"
        for what in ("0", "None", "3", "300", "-1", "'text'", "(1,2)", "True", "2**40")
    ),
    *(f"raise {what}" for what in ("SystemExit(7)", "KeyboardInterrupt", "ValueError('bad')")),
    "cause",
    "_exit",
    *(f"signal {number}" for number in (2, 6, 9, 15)),
    "a hook",
    "a hook that fails",
    "a hook that exits",
    "no hook",
    "finalizer",
    "closed",
    "warnings",
)

PROCESSES = """
import multiprocessing, os, pickle, sys
from concurrent.futures import ProcessPoolExecutor

class Point:
    def __init__(self, x):
        self.x = x

def double(point):
    return Point(2 * point.x), os.environ["PROBE"], __name__

if __name__ == "__main__":
    seen = []
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            point, variable, name = pool.submit(double, Point(21)).result()
            seen.append((method, type(point) is Point, point.x, variable, name))
    print(seen)
"""

RANDOM = """
import json, multiprocessing.process, os, random, secrets, tempfile
import numpy, torch
print(json.dumps({
    "random": random.random(),
    "numpy": numpy.random.random(),
    "numpy generator": numpy.random.default_rng().random(),
    "authkey": multiprocessing.process.current_process().authkey.hex(),
    "tempfile": next(tempfile._get_candidate_names()),
    "torch": torch.rand(1, dtype=torch.float64).item(),
    "torch's seed": torch.initial_seed(),
}))
"""

TORCH = """
import json, os, sys
import numpy, torch
from torch.utils.data import DataLoader, Dataset
import threading

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor([index, os.getpid() != parent])

parent = os.getpid()
if __name__ == "__main__":
    a = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    (a @ a).relu().sum().backward()
    n = numpy.arange(10_000.0).reshape(100, 100)
    batches = [batch.tolist() for batch in DataLoader(Numbers(), batch_size=4, num_workers=2)]
    print(json.dumps({
        "sum": a.grad.double().sum().item(),
        "blas": float((n @ n).sum()),
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "main thread": threading.main_thread().native_id == os.getpid(),
        "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
        "batches": batches,
        "compiled": torch.jit.script(torch.nn.Linear(2, 2)) is not None,
    }))
"""
