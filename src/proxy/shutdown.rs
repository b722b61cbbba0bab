//! Leaves without hanging a flow.

use crate::runtime::tasks::Stop;

use super::replica::Replica;

impl Replica {
    /// Leaves.
    #[allow(clippy::unused_async)]
    pub async fn leave(self, _stop: &Stop) {
        self.closing.send_replace(true);
    }
}
