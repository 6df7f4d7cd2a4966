"""The log as the processes use it: one consumer loop, one transactional loop, one writer; on Kafka and in memory."""
