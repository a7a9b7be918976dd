"""How many processes train, and with which engine: what must hold before anything is built.

Imports no torch.
"""

from gc25d.errors import UserError
from gc25d.settings.training import Hardware, Train


def processes_per_node(hardware: Hardware) -> int:
    """One process a GPU, or one on the CPU, unless the settings say another number."""
    return hardware.processes or max(1, hardware.gpus_per_node)


def choose_engine(asked: str, processes: int) -> str:
    """`plain` or `deepspeed`, from the setting train.engine and the number of processes.

    Raises:
        UserError: the plain engine for several processes.
    """
    if asked == "plain" and processes > 1:
        raise UserError(
            f"train.engine is plain, which is one process, and hardware asks for {processes}: "
            "set train.engine to auto or deepspeed, or ask for one GPU on one node"
        )
    if asked == "auto":
        return "deepspeed" if processes > 1 else "plain"
    return asked


def check_processes(train: Train, hardware: Hardware) -> None:
    """Refuse processes that cannot share the optimizer steps of any data set.

    Whether the last step of an epoch divides too is known with the data (dataset/order.py).

    Raises:
        UserError: the global batch does not divide (lists the numbers of processes that do), or
            the engine cannot have such master weights.
    """
    per_node = processes_per_node(hardware)
    processes = hardware.nodes * per_node
    engine = choose_engine(train.engine, processes)
    if train.master_weights == "bf16" and engine == "deepspeed":
        raise UserError(
            "train.master_weights is bf16 with the deepspeed engine, whose master weights are "
            "fp32: set it to fp32, or train one process with train.engine plain"
        )
    if train.global_batch % processes:
        legal = [n for n in range(1, train.global_batch + 1) if train.global_batch % n == 0]
        raise UserError(
            f"hardware asks for {processes} processes ({hardware.nodes} x {per_node}), which "
            f"train.global_batch {train.global_batch} does not divide among: use "
            f"{', '.join(map(str, legal))} processes"
        )
