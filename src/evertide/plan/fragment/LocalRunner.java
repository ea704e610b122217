package evertide;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.Dependency;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.memory.UnifiedMemoryManager;
import org.apache.spark.rdd.ParallelCollectionPartition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.MonotonicallyIncreasingID;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.RaiseError;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Repartition;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * Runs a fragment over few rows in one call, from Arrow to Arrow. evertide.plan.fragment.local_runner says why, and
 * compiles this class with Spark's compiler for generated code. That compiler supports neither lambdas nor generics,
 * hence the casts.
 */
public final class LocalRunner {
    /** Task attempt ids, above those of Spark's own tasks. */
    private static final AtomicLong ATTEMPTS = new AtomicLong(1L << 40);
    /** Name parts of operators that need other partitions, tasks or processes. */
    private static final String[] OTHERS = {"Exchange", "Broadcast", "Adaptive", "Python", "Pandas", "InMemory"};
    private static final ClassTag TAG = ClassTag$.MODULE$.apply(InternalRow.class);
    private static final String ZONE = "UTC";
    private static final long ALL = 1L << 31;
    /** The message of the error that aborts a run when a join produces too many rows. */
    private static final String TOO_MANY = "evertide: a join produces more rows than one thread should process";

    private final SparkSession session;
    private final LogicalPlan tree;
    private final int height;
    private final List marks;
    private final List outputs;
    private final List structs;
    private final List projections = new ArrayList();
    private final Seq minus;
    private final Seq plus;
    private final StructType struct;
    private final long rowsJoinedMax;
    /** A separate manager: the class of the tasks' own one needs libraries that may be missing. */
    private final MemoryManager memory;
    private final Map known = new HashMap();

    /** `marks`, `outputs` and `structs` have one entry per leaf: the id of its RDD in the tree, its attributes, its type. */
    public LocalRunner(
            SparkSession session,
            LogicalPlan tree,
            int height,
            List marks,
            List outputs,
            List structs,
            Seq minus,
            Seq plus,
            StructType struct,
            long rowsJoinedMax) {
        this.session = session;
        this.tree = tree;
        this.height = height;
        this.marks = marks;
        this.outputs = outputs;
        this.structs = structs;
        this.minus = minus;
        this.plus = plus;
        this.struct = struct;
        this.rowsJoinedMax = rowsJoinedMax;
        this.memory = UnifiedMemoryManager.apply(session.sparkContext().conf(), 1);
        for (int at = 0; at < structs.size(); at++) {
            this.projections.add(UnsafeProjection$.MODULE$.create((StructType) structs.get(at)));
        }
    }

    /**
     * Reads terms from one file and writes their rows to another. Returns how they were computed: "place", "here" (in
     * this thread) or "job"; or "too many" if a join produces too many rows, and nothing was written.
     */
    public synchronized String run(String from, String to, boolean isRowWise, boolean isEnabled) throws Exception {
        Option before = SparkSession.getActiveSession();
        SparkSession.setActiveSession(this.session);
        try {
            return this.compute(from, to, isRowWise, isEnabled);
        } finally {
            if (before.isDefined()) {
                SparkSession.setActiveSession((SparkSession) before.get());
            } else {
                SparkSession.clearActiveSession();
            }
        }
    }

    private String compute(String from, String to, boolean isRowWise, boolean isEnabled) throws Exception {
        List signs = new ArrayList();
        List terms = this.read(from, signs);
        if (isRowWise) {
            List found = this.runInPlace(signs, terms);
            if (found != null) {
                this.write(to, found);
                return "place";
            }
        }
        try {
            return this.runPlan(to, terms, signs, isEnabled);
        } catch (Exception error) {
            if (isTooMany(error)) {
                return "too many";
            }
            throw error;
        }
    }

    private String runPlan(String to, List terms, List signs, boolean isEnabled) throws Exception {
        if (isEnabled) {
            Prepared prepared = this.prepare(signs);
            if (prepared.rdd != null) {
                try {
                    prepared.hold(terms);
                    this.writeInDriver(to, prepared.rdd);
                    return "here";
                } catch (Exception error) {
                    if (isTooMany(error)) {
                        throw error;
                    }
                    this.known.remove(signs); // do not reuse a failed plan; the job reports the better error
                } finally {
                    prepared.hold(null);
                }
            }
        }
        List all = new ArrayList();
        all.add(this.plan(this.makeRelations(terms), signs).executeCollectIterator()._2());
        this.write(to, all);
        return "job";
    }

    private static boolean isTooMany(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (String.valueOf(cause.getMessage()).indexOf(TOO_MANY) >= 0) {
                return true;
            }
        }
        return false;
    }

    // Rows in.

    private List read(String from, List signs) throws Exception {
        List terms = new ArrayList();
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(from)));
        try {
            int count = in.readInt();
            for (int number = 0; number < count; number++) {
                signs.add(Integer.valueOf(in.readInt()));
                List leaves = new ArrayList();
                for (int at = 0; at < this.marks.size(); at++) {
                    leaves.add(this.readLeaf(in, at));
                }
                terms.add(leaves);
            }
        } finally {
            in.close();
        }
        return terms;
    }

    private Object[] readLeaf(DataInputStream in, int at) throws Exception {
        List batches = new ArrayList();
        int count = in.readInt();
        for (int number = 0; number < count; number++) {
            byte[] batch = new byte[in.readInt()];
            in.readFully(batch);
            batches.add(batch);
        }
        scala.collection.Iterator rows = ArrowConverters$.MODULE$.fromBatchIterator(
                CollectionConverters.asScala(batches.iterator()),
                (StructType) this.structs.get(at), ZONE, false, false, null);
        UnsafeProjection projection = (UnsafeProjection) this.projections.get(at);
        List held = new ArrayList();
        while (rows.hasNext()) {
            held.add(projection.apply((InternalRow) rows.next()).copy());
        }
        return held.toArray();
    }

    /** The rows of each term as local relations. */
    private List makeRelations(List terms) {
        List found = new ArrayList();
        for (int number = 0; number < terms.size(); number++) {
            List leaves = new ArrayList();
            for (int at = 0; at < this.marks.size(); at++) {
                Seq rows = ArraySeq$.MODULE$.unsafeWrapArray((Object[]) ((List) terms.get(number)).get(at));
                leaves.add(new LocalRelation((Seq) this.outputs.get(at), rows, false, Option.empty()));
            }
            found.add(leaves);
        }
        return found;
    }

    /** An RDD of one partition whose rows are set before each run, so that a plan over it is reused. */
    private static final class HeldRows extends RDD {
        private final Partition[] partitions;
        private Object[] rows = new Object[0];

        HeldRows(SparkContext spark, ClassTag tag) {
            super(spark, (Seq) Nil$.MODULE$, tag);
            this.partitions = new Partition[] {new ParallelCollectionPartition(0L, 0, (Seq) Nil$.MODULE$, tag)};
        }

        public Partition[] getPartitions() {
            return this.partitions;
        }

        public scala.collection.Iterator compute(Partition partition, TaskContext context) {
            return ArraySeq$.MODULE$.unsafeWrapArray(this.rows).iterator();
        }
    }

    /** A plan that this thread can run; its RDD is null if the plan needs a job. */
    private static final class Prepared {
        private final List held = new ArrayList();
        private RDD rdd;

        void hold(List terms) {
            for (int number = 0; number < this.held.size(); number++) {
                List leaves = (List) this.held.get(number);
                for (int at = 0; at < leaves.size(); at++) {
                    ((HeldRows) leaves.get(at)).rows =
                            terms == null ? new Object[0] : (Object[]) ((List) terms.get(number)).get(at);
                }
            }
        }
    }

    private Prepared prepare(List signs) {
        Prepared found = (Prepared) this.known.get(signs);
        if (found == null) {
            found = this.makePrepared(signs);
            this.known.put(signs, found);
        }
        return found;
    }

    private Prepared makePrepared(List signs) {
        Prepared made = new Prepared();
        List relations = new ArrayList();
        for (int number = 0; number < signs.size(); number++) {
            List leaves = new ArrayList();
            List held = new ArrayList();
            for (int at = 0; at < this.marks.size(); at++) {
                HeldRows rows = new HeldRows(this.session.sparkContext(), TAG);
                held.add(rows);
                Seq output = (Seq) this.outputs.get(at);
                LocalRelation few = new LocalRelation(output, (Seq) Nil$.MODULE$, false, Option.empty());
                leaves.add(new LogicalRDD(
                        output, rows, SinglePartition$.MODULE$, (Seq) Nil$.MODULE$, false, Option.empty(),
                        this.session, Option.apply(few.stats()), Option.empty(), false));
            }
            made.held.add(held);
            relations.add(leaves);
        }
        SparkPlan plan = this.plan(relations, signs);
        made.rdd = this.canRunInDriver(plan) ? plan.execute() : null;
        return made;
    }

    // Plans.

    /**
     * Puts relations in the places of the leaves, all in one partition, so that Spark plans no exchange. For a union,
     * and for a join below a join, Spark needs a Repartition node to know that there is one partition.
     */
    private LogicalPlan bind(LogicalPlan tree, List leaves, boolean isForPlan, boolean isBelowJoin) {
        if (tree instanceof LogicalRDD) {
            int at = this.marks.indexOf(Integer.valueOf(((LogicalRDD) tree).rdd().id()));
            if (at >= 0) {
                LogicalPlan leaf = (LogicalPlan) leaves.get(at);
                return isForPlan && leaf instanceof LocalRelation ? new Repartition(1, false, leaf) : leaf;
            }
        }
        List below = new ArrayList();
        scala.collection.Iterator children = ((Seq) tree.children()).iterator();
        while (children.hasNext()) {
            below.add(this.bind(
                    (LogicalPlan) children.next(), leaves, isForPlan, isBelowJoin || tree instanceof Join));
        }
        if (below.isEmpty()) { // constants: Spark would distribute them over partitions
            return isForPlan ? new Repartition(1, false, tree) : tree;
        }
        if (tree instanceof RepartitionByExpression) {
            return (LogicalPlan) below.get(0);
        }
        LogicalPlan made = (LogicalPlan) tree.withNewChildren(sequence(below));
        if (isForPlan && tree instanceof Join) {
            made = this.limitRows(made);
        }
        boolean isUnseen = tree instanceof Union || (isBelowJoin && tree instanceof Join);
        return isForPlan && isUnseen ? new Repartition(1, false, made) : made;
    }

    /** Numbers the rows of a join, and raises TOO_MANY at the first number above the limit. */
    private LogicalPlan limitRows(LogicalPlan join) {
        Expression isWithin = new LessThan(
                new MonotonicallyIncreasingID(), Literal$.MODULE$.apply(Long.valueOf(this.rowsJoinedMax)));
        Expression fails = new IsNotNull(new RaiseError(Literal$.MODULE$.apply(TOO_MANY)));
        return new Filter(new Or(isWithin, fails), join);
    }

    private LogicalPlan addSign(Object sign, List leaves, boolean isForPlan) {
        Seq columns = ((Integer) sign).intValue() < 0 ? this.minus : this.plus;
        return new Project(columns, this.bind(this.tree, leaves, isForPlan, false));
    }

    /** Computes maps and filters without a plan, by a rule of the optimizer; null if the tree has other operators. */
    private List runInPlace(List signs, List terms) {
        List found = new ArrayList();
        List relations = this.makeRelations(terms);
        for (int number = 0; number < terms.size(); number++) {
            LogicalPlan plan = this.addSign(signs.get(number), (List) relations.get(number), false);
            for (int step = 0; step <= this.height; step++) {
                plan = (LogicalPlan) ConvertToLocalRelation$.MODULE$.apply(plan);
            }
            if (!(plan instanceof LocalRelation)) {
                return null;
            }
            found.add(((LocalRelation) plan).data().iterator());
        }
        return found;
    }

    private SparkPlan plan(List relations, List signs) {
        List trees = new ArrayList();
        for (int number = 0; number < signs.size(); number++) {
            trees.add(this.addSign(signs.get(number), (List) relations.get(number), true));
        }
        LogicalPlan whole = trees.size() == 1 ? (LogicalPlan) trees.get(0) : new Union(sequence(trees), false, false);
        return QueryExecution$.MODULE$.prepareExecutedPlan(this.session, whole);
    }

    private static Seq sequence(List values) {
        return ArraySeq$.MODULE$.unsafeWrapArray(values.toArray());
    }

    // Execution.

    /** An exchange that no job has run yields no rows and no error, so such plans must be found before they run. */
    public boolean canRunInDriver(SparkPlan plan) {
        if (needsTasks(plan) || ((Seq) plan.subqueriesAll()).nonEmpty()) {
            return false;
        }
        return isNarrow(plan.execute());
    }

    private static boolean needsTasks(SparkPlan plan) {
        String name = plan.getClass().getSimpleName();
        for (int at = 0; at < OTHERS.length; at++) {
            if (name.indexOf(OTHERS[at]) >= 0) {
                return true;
            }
        }
        scala.collection.Iterator children = ((Seq) plan.children()).iterator();
        while (children.hasNext()) {
            if (needsTasks((SparkPlan) children.next())) {
                return true;
            }
        }
        return false;
    }

    /** Some operators contain an exchange although their name does not say so: the RDD's lineage shows it. */
    private static boolean isNarrow(RDD rdd) {
        scala.collection.Iterator dependencies = ((Seq) rdd.dependencies()).iterator();
        while (dependencies.hasNext()) {
            Dependency dependency = (Dependency) dependencies.next();
            if (!(dependency instanceof NarrowDependency) || !isNarrow(dependency.rdd())) {
                return false;
            }
        }
        return true;
    }

    /** Computes the rows as a task would, with a task context that lasts as long as the computation. */
    private void writeInDriver(String to, RDD rdd) throws Exception {
        Partition[] partitions = rdd.partitions();
        DataOutputStream out = output(to);
        try {
            for (int at = 0; at < partitions.length; at++) {
                this.writePartition(out, rdd, partitions[at], partitions.length);
            }
        } finally {
            out.close();
        }
    }

    private void writePartition(DataOutputStream out, RDD rdd, Partition partition, int count) throws Exception {
        SparkContext spark = this.session.sparkContext();
        long attempt = ATTEMPTS.incrementAndGet();
        TaskMemoryManager memory = new TaskMemoryManager(this.memory, attempt);
        TaskContextImpl context = new TaskContextImpl(
                0, 0, partition.index(), attempt, 0, count, memory, spark.getLocalProperties(), null,
                TaskMetrics.empty(), null, Map$.MODULE$.empty());
        TaskContext$.MODULE$.setTaskContext(context);
        try {
            this.writeRows(out, rdd.iterator(partition, context));
        } finally {
            try {
                context.markTaskCompleted(Option.empty());
            } finally {
                memory.cleanUpAllAllocatedMemory();
                TaskContext$.MODULE$.unset();
            }
        }
    }

    /** Execution memory in use: 0 while no run is in progress. */
    public long memoryUsed() {
        return this.memory.executionMemoryUsed();
    }

    // Rows out: each batch is preceded by its length.

    private void write(String to, List several) throws Exception {
        DataOutputStream out = output(to);
        try {
            for (int at = 0; at < several.size(); at++) {
                this.writeRows(out, (scala.collection.Iterator) several.get(at));
            }
        } finally {
            out.close();
        }
    }

    private void writeRows(DataOutputStream out, scala.collection.Iterator rows) throws Exception {
        scala.collection.Iterator batches = ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
                rows, this.struct, ALL, ALL, ZONE, false, false);
        while (batches.hasNext()) {
            byte[] batch = (byte[]) batches.next();
            out.writeInt(batch.length);
            out.write(batch);
        }
    }

    private static DataOutputStream output(String to) throws Exception {
        return new DataOutputStream(new BufferedOutputStream(new FileOutputStream(to)));
    }
}
