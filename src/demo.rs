//! A whole group of replicas in network namespaces of this machine, under load: `tailyard demo`.
