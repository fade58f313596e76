"""Makes the data source `tidelog` known to Spark: PySpark imports every module whose name begins with
`pyspark_`, and registers its `DefaultSource`.

Settings are the options of the reader or writer, then `TIDELOG_*` variables of Spark's driver, then the stack
of `tidelog dev` in the driver's directory.
"""

from spark_source.options import settings_options
from spark_source.settings import SourceSettings
from spark_source.source import TidelogSource
from tidelog.process.environment import Environment


class DefaultSource(TidelogSource):
    def settings(self) -> SourceSettings:
        """Raises UserError, which names the setting that is wrong or missing."""
        given = Environment.of_process().with_options(settings_options(self.options))
        settings = given.read(SourceSettings)
        if settings.http_url and settings.store_url:
            return settings
        from tidelog.find_cluster import find_cluster  # imports a client of Postgres

        return find_cluster(given).read(SourceSettings)
