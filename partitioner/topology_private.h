/* What the files of the topology share. */
#ifndef MGPU_PARTITIONER_TOPOLOGY_PRIVATE_H
#define MGPU_PARTITIONER_TOPOLOGY_PRIVATE_H

#include "partitioner/topology.h"

/* A row of the table of known devices. */
struct mgpu_known_device {
    const char *name;
    int sm;                    /* compute capability: 90 is 9.0 */
    double tflops[MGPU_RATES]; /* dense peaks; 0: that of the next wider rate */
    double memory_gb_s;
    double memory_gib;
    double nvlink_gb_s; /* planned point to point, per direction; 0: has none */
    double ring_gb_s;   /* all-reduce bus bandwidth of 8 over NVLink */
    double switch_gb_s; /* the same summed in the switch; 0: cannot */
    double pcie_gb_s;   /* planned point to point */
    double pcie_ring_gb_s;
    double pcie_far_gb_s; /* the same of more than 4, which lie on two sockets */
    double pcie_base_us;  /* least time of a transfer over PCIe */
    double network_gbit;  /* of one adapter, where "ib" says no more */
};

/* The table, ended by a NULL name. */
extern const struct mgpu_known_device mgpu_known_devices[];

/* The row of a GPU that calls itself as `gpu` does, of several the one whose memory is most alike;
 * else the row whose memory has the most similar bandwidth and that is of about the same age. */
struct mgpu_gpu_facts;
const struct mgpu_known_device *mgpu_known_gpu(const struct mgpu_gpu_facts *gpu);

/* Fills a kind from a row of the table. */
void mgpu_kind_of_known(struct mgpu_device_kind *kind, const struct mgpu_known_device *known);

/* The same for a GPU here whose row that is (mgpu_known_gpu). Where it is called so, but is a slice
 * (MIG) or has another memory, bandwidth or speed by more than a quarter (a laptop's, one on PCIe),
 * what the driver says scales the numbers. kind->stands_for is the name in `gpu`. */
void mgpu_kind_of_gpu(struct mgpu_device_kind *kind, const struct mgpu_known_device *known,
                      const struct mgpu_gpu_facts *gpu);

/* Fabrics: NCCL's latencies over NVLink or PCIe of a machine with so many; a bandwidth, one latency
 * for all and one for each hop. */
void mgpu_fabric_nccl(struct mgpu_fabric *fabric, const struct mgpu_known_device *known,
                      bool nvlink, int in_machine);
void mgpu_fabric_plain(struct mgpu_fabric *fabric, double ring, double base_ms, double hop_ms);

/* Usable bytes per second of a network adapter of so many Gb/s. */
double mgpu_adapter_bytes(double gbit);

/* An empty topology with room for so much; links are zero. */
struct mgpu_topology *mgpu_topology_new(const char *text, int kinds, int devices);

/* Links between all devices of a machine, or between machines, of one speed. `shared`: all
 * transfers of a machine take turns; else only those that leave one device (inside) or one adapter
 * (between). Channels are numbered from `channel` on. */
void mgpu_links_inside(struct mgpu_topology *t, double bytes, double latency_ms, bool shared);
void mgpu_links_between(struct mgpu_topology *t, double bytes, double latency_ms, int adapters);

int mgpu_topology_json(struct mgpu_topology **out, const char *path);

#endif
