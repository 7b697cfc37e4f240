"""Writes tests/data/golden/: small data files of every kind, good, odd and hostile.

Needs numpy and h5py; only for making the files again:  python tests/data/make_golden.py
"""
import gzip
import io
import os
import struct
import zipfile
import zlib

import h5py
import numpy as np

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
MATRIX = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def put(name, content):
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(content)


def put_zip(name, members):
    with zipfile.ZipFile(os.path.join(HERE, name), "w") as f:
        for member, content in members.items():
            f.writestr(zipfile.ZipInfo(member), content)


def npy(header, data, version=1):
    """An npy file with exactly this header text."""
    text = header.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def header(descr="'<f4'", order="False", shape="(2, 3)"):
    return "{'descr': %s, 'fortran_order': %s, 'shape': %s, }" % (descr, order, shape)


def make_npy():
    data = MATRIX.tobytes()
    put("columns.npy", npy(header(order="True"), np.array([1, 4, 2, 5, 3, 6], "<f4").tobytes()))
    put("big_endian.npy", npy(header("'>f4'"), MATRIX.astype(">f4").tobytes()))
    put("double.npy", npy(header("'<f8'"), MATRIX.astype("<f8").tobytes()))
    put("uint8.npy", npy(header("'|u1'"), MATRIX.astype("u1").tobytes()))
    put("version2.npy", npy(header(), data, 2))
    put("version3.npy", npy(header(), data, 3))
    put("big_columns.npy", npy(header("'>i2'", "True"), np.array([1, 4, 2, 5, 3, 6], ">i2").tobytes()))
    put("scalar.npy", npy(header(shape="()"), np.float32(7).tobytes()))
    put("no_comma.npy", npy(header(shape="(6)"), data))
    put("pickle.npy", npy(header("'|O'"), b"\x80\x04K\x01."))
    put("short.npy", npy(header(), data[:-4]))
    put("long_header.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 70) + header().encode()[:40])
    put("text.npy", npy(header("'<U3'"), b"\0" * 72))
    put("records.npy", npy(header("[('a', '<f4'), ('b', '<i4')]", shape="(3,)"), data))
    put("huge.npy", npy(header(shape="(4294967296, 4294967296)"), data))
    put("version9.npy", npy(header(), data, 9))
    labels = {"uint8": np.uint8, "int32": np.int32, "int64": np.int64, "float": np.float32}
    for name, kind in labels.items():
        np.save(os.path.join(HERE, "labels_%s.npy" % name), np.array([0, 3, 2, 1], kind))
    np.save(os.path.join(HERE, "labels_column.npy"), np.array([[0], [3], [2], [1]], np.int64))
    np.save(os.path.join(HERE, "labels_5.npy"), np.array([0, 3, 5, 1], np.int64))
    np.save(os.path.join(HERE, "labels_minus.npy"), np.array([0, 3, -1, 1], np.int64))
    np.save(os.path.join(HERE, "labels_255.npy"), np.array([0, 3, 255, 1], np.uint8))
    np.save(os.path.join(HERE, "labels_half.npy"), np.array([0, 3, 2.5, 1], np.float32))
    np.save(os.path.join(HERE, "labels_2049.npy"), np.array([0, 2049, 4095, 1], np.int64))


def make_npz():
    np.savez(os.path.join(HERE, "stored.npz"), x=MATRIX, y=np.arange(2))
    np.savez_compressed(os.path.join(HERE, "deflated.npz"), x=MATRIX, zeros=np.zeros((100, 100)))
    np.savez(os.path.join(HERE, "one.npz"), x=MATRIX)
    put("zip64.npz", zip64(npy(header(), MATRIX.tobytes())))
    good = open(os.path.join(HERE, "deflated.npz"), "rb").read()
    put("cut.npz", good[:-30])
    at = good.rindex(b"PK\1\2")  # the last directory entry: claim 2^31 bytes
    put("bomb.npz", good[: at + 24] + struct.pack("<I", 1 << 31) + good[at + 28 :])
    damaged = bytearray(open(os.path.join(HERE, "one.npz"), "rb").read())
    damaged[damaged.index(MATRIX.tobytes())] ^= 1
    put("damaged.npz", bytes(damaged))
    put_zip("twins.npz", {"x.npy": npy(header(), MATRIX.tobytes()), "x": b"other"})
    put_zip("long.npz", {"x.npy": npy(header(), MATRIX.tobytes() + b"???")})


def zip64(content):
    """One stored member x.npy, every number of its directory in the zip64 field."""
    name, crc, n = b"x.npy", zlib.crc32(content), len(content)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0x21, crc, n, n, len(name), 0) + name
    extra = struct.pack("<HHQQQ", 1, 24, n, n, 0)
    entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 45, 45, 0, 0, 0, 0x21, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name),
                        len(extra), 0, 0, 0, 0, 0xFFFFFFFF) + name + extra
    start = len(local) + n
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(entry), start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, start + len(entry), 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return local + content + entry + record + locator + end


def make_idx():
    idx = struct.pack(">HBBII", 0, 0x0D, 2, 2, 3) + MATRIX.astype(">f4").tobytes()
    put("matrix.idx", idx)
    packed = gzip.compress(idx, mtime=0)
    put("matrix.idx.gz", packed)
    put("short.idx", idx[:-4])
    put("short.idx.gz", gzip.compress(idx[:-4], mtime=0))
    put("cut.idx.gz", packed[:-12])
    put("crc.idx.gz", packed[:-8] + b"\0\0\0\0" + packed[-4:])
    put("bomb.idx.gz", gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 1 << 20, 1 << 10, 1 << 10), mtime=0))
    put("text.gz", gzip.compress(b"hello", mtime=0))


def h5(name):
    return h5py.File(os.path.join(HERE, name), "w", libver="earliest")


def make_h5():
    with h5("types.h5") as f:
        for kind in "u1 i1 <u2 >u2 <i2 >i2 <i4 >i4 <u4 <i8 >i8 <u8 <f2 >f2 <f4 >f4 <f8 >f8".split():
            f["type_%s" % kind.replace("<", "l").replace(">", "b")] = MATRIX.astype(kind)
        f["bool"] = np.array([True, False, True])
        f["enum"] = f["type_u1"]
        del f["enum"]
        colours = h5py.enum_dtype({"red": 1, "green": 2, "blue": 6}, basetype="i2")
        f.create_dataset("enum", data=np.array([1, 2, 6], "i2"), dtype=colours)
        f["group/inside/deep"] = MATRIX
        f["a:b"] = MATRIX
        f["scalar"] = np.float32(7)
        f["text"] = np.array([b"one", b"two"])
        f["vtext"] = "hello"
        f.create_dataset("record", data=np.zeros(2, [("a", "f4"), ("b", "i4")]))
        f.create_dataset("lzf", data=MATRIX, compression="lzf")
        f.create_dataset("packed", data=MATRIX, compression="gzip", shuffle=True, fletcher32=True)
    with h5("one.h5") as f:
        f["x"] = MATRIX
    with h5("pair.h5") as f:
        f["x"] = np.arange(20, dtype="f4").reshape(10, 2)
        f["label"] = np.arange(10) % 3
        f["extra"] = np.zeros(3)
    with h5("counted.h5") as f:  # reports.md row 37
        n = np.arange(10007, dtype="f4").reshape(-1, 1)
        f.create_dataset("x", data=n, chunks=(1000, 1), compression="gzip")
        f.create_dataset("label", data=(np.arange(10007) * 10 // 10007).astype("u1"), chunks=(1000,), compression="gzip")
    with h5("steps.h5") as f:  # samples on axis 1
        f.create_dataset("x", data=np.arange(3 * 7 * 2, dtype="f4").reshape(3, 7, 2), chunks=(2, 3, 1), compression="gzip")
    make_hostile()


def make_hostile():
    """Kinds of reports.md row 35."""
    with h5("external_link.h5") as f:
        f["x"] = h5py.ExternalLink("one.h5", "/x")
    with h5("soft_loop.h5") as f:
        f["x"] = h5py.SoftLink("/y")
        f["y"] = h5py.SoftLink("/x")
    with h5("soft_group.h5") as f:
        f["real/x"] = MATRIX
        f["alias"] = h5py.SoftLink("/real")
    with h5("hard_loop.h5") as f:
        f["group/x"] = MATRIX
        f["group/again"] = f["group"]
    with h5("external_storage.h5") as f:
        f.create_dataset("x", shape=(2, 3), dtype="f4", external=[("one.h5", 0, 24)])
    with h5("virtual.h5") as f:
        layout = h5py.VirtualLayout(shape=(2, 3), dtype="f4")
        layout[:] = h5py.VirtualSource("one.h5", "x", shape=(2, 3))
        f.create_virtual_dataset("x", layout)
    with h5("never_written.h5") as f:
        f.create_dataset("x", shape=(1 << 20, 1 << 20), dtype="f4", chunks=(256, 256), compression="gzip")
    with h5("many_large.h5") as f:
        for i in range(64):
            f.create_dataset("x%02d" % i, shape=((1 << 30) - 1,), dtype="f4")
    with h5("genuine.h5") as f:
        f.create_dataset("x", data=np.zeros((2048, 512), "f4"), chunks=(2048, 512), compression="gzip", compression_opts=9)
    with h5("damaged_chunk.h5") as f:
        d = f.create_dataset("x", data=np.arange(40, dtype="f4").reshape(10, 4), chunks=(2, 4), compression="gzip")
        at = d.id.get_chunk_info(3).byte_offset
    path = os.path.join(HERE, "damaged_chunk.h5")
    content = bytearray(open(path, "rb").read())
    content[at : at + 8] = b"\xff" * 8
    put("damaged_chunk.h5", bytes(content))


if __name__ == "__main__":
    os.makedirs(HERE, exist_ok=True)
    os.chdir(HERE)
    make_npy()
    make_npz()
    make_idx()
    make_h5()
