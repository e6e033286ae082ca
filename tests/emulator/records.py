"""The structs of machine/machine.h, for ctypes. decode.py compares their sizes with C's."""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag

DPP = ("quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_rol", "wave_shr", "wave_ror", "row_mirror",
       "row_half_mirror", "row_bcast", "row_newbcast", "row_share", "row_xmask", "dpp8")  # fmt: skip
CHECKS = ("ok", "unknown", "address", "outstanding", "race", "barrier", "wait states", "unwritten", "endless",
          "program")  # fmt: skip


class Kind(IntEnum):
    NONE, VGPR, SGPR, INTEGER, FLOAT, SPECIAL = range(6)


class Flag(IntFlag):
    CLAMP = 1 << 0
    LDS = 1 << 1
    OFFEN = 1 << 2
    IDXEN = 1 << 3
    SC0 = 1 << 4
    SC1 = 1 << 5
    NT = 1 << 6
    GDS = 1 << 7
    TFE = 1 << 8
    BOUND_CTRL = 1 << 9
    FETCH_INVALID = 1 << 10
    SDWA = 1 << 11
    DPP = 1 << 12
    DUAL = 1 << 13
    OP_SEL_HI = 1 << 14
    LAST_USE = 1 << 16


class LaunchFlag(IntFlag):
    FAULT_UNWRITTEN = 1
    NO_HAZARDS = 2


class Operand(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint8), ("words", ctypes.c_uint8), ("index", ctypes.c_uint16), ("neg", ctypes.c_uint8),
        ("abs", ctypes.c_uint8), ("sext", ctypes.c_uint8), ("part", ctypes.c_uint8), ("bits", ctypes.c_uint64),
        ("value", ctypes.c_double),
    ]  # fmt: skip


class Range(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint16), ("first", ctypes.c_uint16), ("count", ctypes.c_uint16),
                ("half", ctypes.c_uint16)]  # fmt: skip


class Instruction(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_void_p), ("pc", ctypes.c_uint32), ("size", ctypes.c_uint32), ("opcode", ctypes.c_uint32),
        ("text", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("target", ctypes.c_int32), ("offset", ctypes.c_int32),
        ("offset1", ctypes.c_int32), ("dpp_value", ctypes.c_uint32), ("dpp", ctypes.c_uint8),
        ("row_mask", ctypes.c_uint8), ("bank_mask", ctypes.c_uint8), ("operands", ctypes.c_uint8),
        ("omod", ctypes.c_uint8), ("op_sel", ctypes.c_uint8), ("op_sel_hi", ctypes.c_uint8), ("neg_lo", ctypes.c_uint8),
        ("neg_hi", ctypes.c_uint8), ("dst_part", ctypes.c_uint8), ("dst_unused", ctypes.c_uint8),
        ("cbsz", ctypes.c_uint8), ("abid", ctypes.c_uint8), ("blgp", ctypes.c_uint8), ("wait", ctypes.c_int8 * 7),
        ("family", ctypes.c_uint8), ("immediate", ctypes.c_int32), ("operand", Operand * 6),
        ("results", ctypes.c_uint8), ("sources", ctypes.c_uint8), ("first_source", ctypes.c_uint8),
        ("matrix", ctypes.c_uint8), ("precision", ctypes.c_char),
        ("reads", ctypes.c_uint8), ("writes", ctypes.c_uint8), ("read", Range * 9),
        ("write", Range * 4),
    ]  # fmt: skip


class Program(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in (
            "target", "wave_size", "count", "entry", "plain_entry", "vgprs", "agprs", "sgprs", "lds", "scratch", "mode",
            "properties", "rsrc2", "preload", "preload_offset", "kernarg", "texts_size")),
        ("instructions", ctypes.POINTER(Instruction)), ("texts", ctypes.c_char_p),
        ("executed", ctypes.POINTER(ctypes.c_uint64)),
    ]  # fmt: skip


class Region(ctypes.Structure):
    _fields_ = [("base", ctypes.c_uint64), ("size", ctypes.c_uint64), ("writable", ctypes.c_uint32),
                ("id", ctypes.c_uint32)]  # fmt: skip


class Launch(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.POINTER(Program)), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
        ("dynamic_lds", ctypes.c_uint32), ("kernarg_size", ctypes.c_uint32), ("kernarg", ctypes.c_char_p),
        ("regions", ctypes.POINTER(Region)), ("region_count", ctypes.c_uint32), ("flags", ctypes.c_uint32),
        ("schedule_seed", ctypes.c_uint64), ("contents_seed", ctypes.c_uint64), ("limit", ctypes.c_uint64),
    ]  # fmt: skip


class Fault(ctypes.Structure):
    _fields_ = [
        ("check", ctypes.c_uint32), ("instruction", ctypes.c_uint32), ("pc", ctypes.c_uint32),
        ("group", ctypes.c_uint32 * 3), ("wave", ctypes.c_uint32), ("lane", ctypes.c_int32),
        ("address", ctypes.c_uint64), ("why", ctypes.c_char * 256),
    ]  # fmt: skip


class Report(ctypes.Structure):
    _fields_ = [("fault", Fault), ("instructions", ctypes.c_uint64), ("unwritten", ctypes.c_uint64)]
