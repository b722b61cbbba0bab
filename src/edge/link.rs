//! Links, addresses and MTU, over rtnetlink.
